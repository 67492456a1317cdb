"""Whether what was declared is in force: declared, applied and observed, compared again and again."""
