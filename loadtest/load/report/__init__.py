"""What is left of a run for people and for pipelines: one folder of files.

Owns: the files (``files``, ``exports``), the page (``page``, made of ``plots`` and ``fold``; how it looks is
`canopy_pages`').

Promises: made from a ``Result`` and nothing else, so that any run can be reported again. The page is one file that
fetches nothing; text from outside can do nothing in it.

It needs the `load` extra, and only `canopy load` imports it. Nothing is imported here: the processes of a run know a
result and no file of it.
"""
