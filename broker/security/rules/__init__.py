"""Who may do what: rules from the settings, from a file of mosquitto's, and from tokens, and what they come to.

`rule` has one rule, `rule_set` finds the first of many that speaks, `acl_file` reads mosquitto's, `claims` what tokens
bring, and `book` is all of it together: what the access control of the broker asks.
"""
