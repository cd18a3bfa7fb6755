"""From a trace and an SLO to a recommendation, chosen on one window and measured on the next."""
