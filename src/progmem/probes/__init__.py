"""What frozen representations are good for; every probe takes any `progmem.Encoder`."""
