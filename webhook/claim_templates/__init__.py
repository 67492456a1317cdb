"""webhook/claim_templates."""
