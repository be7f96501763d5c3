"""Whatever anybody sends, a healthy pair beside it notices nothing, and the server is afterwards as it was before."""
