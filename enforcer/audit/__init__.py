"""The audit log: records that survive crashes and tampering, their segments, retention and writer."""
