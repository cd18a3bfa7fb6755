"""What policies with a table learn: one folder a learner, and what learners share."""
