"""What crosses the link between a relay and a mirror: messages, frames in them, and parts in those.

The layout of every byte is in docs/protocol.md.
"""
