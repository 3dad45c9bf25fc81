"""Plug-ins: what a program, or a module that the settings name, may say about clients and messages, and is told of.

`interface` is what a plug-in implements, `running` has a broker call it; public as `canopy.hooks`. See docs/hooks.md.
"""
