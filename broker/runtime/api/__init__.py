"""What network services, operators and tiering ask of a broker."""
