"""What is offered: the Board people use, and the service that answers it."""
