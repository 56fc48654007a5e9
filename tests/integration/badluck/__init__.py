"""Bad input and bad luck, end to end; one deployment serves all tests of this package."""
