"""What a crowd may take: request rates, fair shares, bytes on their way in."""
