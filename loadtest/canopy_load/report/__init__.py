"""The report of a run, for people and for pipelines: one folder of files.

Owns: the files (``report_files``, ``exports``), the page (``report_page``, made of ``report_plots``; its style is
`canopy_mqtt.pages`'), the view on the terminal (``live``) and the words (``wording``).

Promises: made from a ``Result`` and nothing else, so that any run can be reported again. The page is one file that
fetches nothing; text from outside can do nothing in it.

It needs the `load` extra, and only `canopy load` imports it. Importing this package imports none of its modules.
"""
