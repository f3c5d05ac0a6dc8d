"""The runtime: asyncio around the store's transactions and the engines' processes."""
