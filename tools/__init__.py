"""What keeps the project's generated files right. Not shipped."""
