"""What people see of a search: status, report and Optuna's view. Everything follows from the ledger."""
