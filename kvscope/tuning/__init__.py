"""From a trace and an SLO to a recommendation: chosen on one part, judged on the next."""
