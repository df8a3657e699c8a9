"""Which attention heads matter: the effect of disabling them, their importance by gradient, and pruning."""
