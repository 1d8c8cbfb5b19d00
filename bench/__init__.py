"""Programs that measure Blackboard beside its peers on the machine they run on."""
