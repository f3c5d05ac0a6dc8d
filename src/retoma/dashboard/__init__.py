"""The operator's page at `/`: a shell without data, and pieces of HTML for whoever holds the scope `admin`."""
