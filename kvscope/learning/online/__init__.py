"""Learning from the requests that an engine serves: what all learners share."""
