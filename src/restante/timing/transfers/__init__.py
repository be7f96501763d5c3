"""Files of logs and traces, and which belong to one transfer."""
