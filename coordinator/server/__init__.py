"""The process around the core: election, and commands into effects and effects into events."""
