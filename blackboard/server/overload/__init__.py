"""Overload protection: request rates, fair shares, and limits of inbound bytes."""
