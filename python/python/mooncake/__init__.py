"""Mooncake's Python interface, over Lunette.

It takes the place of the package `mooncake-transfer-engine`: programs that import `mooncake.store` run as they are.
What is mapped, refused or ignored is in `COMPATIBILITY.md`.

| module | subject |
|---|---|
| `store` | objects: what programs import |
| `engine` | transfers between memory of processes: what programs import |
| `master` | the program `mooncake_master`: a Lunette coordinator |
| `http_metadata_server` | the program of that name |
| `_objects` | `MooncakeDistributedStore`: objects and buffers |
| `_sessions` | the same: sessions and ranges |
| `_unsupported` | the same: methods that are refused |
| `_setup` | settings of a store, and how one is opened |
| `_types` | configurations, descriptors and enumerations |
| `_codes` | return codes |
"""
