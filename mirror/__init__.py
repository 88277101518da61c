"""twinsite: an exact copy of a Kafka cluster at a second site."""

__version__ = "0.1.0"
