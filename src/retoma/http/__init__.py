"""The HTTP face of an instance: contract.md §2 to §5 over the protocol `runtime.service.Service`."""
