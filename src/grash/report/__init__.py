"""What people see of a search: figures and rows, the report, Optuna's view. All of it follows from the ledger."""
