"""The vocabulary that all parts share: contract, reasons, errors, quantities, and the client of the API server."""
