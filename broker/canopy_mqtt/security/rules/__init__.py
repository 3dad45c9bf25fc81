"""The access rules: from the settings, from a mosquitto file, and from tokens.

`rule` has one rule, `rule_set` finds the first matching one of many, `acl_file` reads mosquitto's, `claims` those of
tokens, and `rule_book` combines them for the broker's access control.
"""
