"""What a full queue drops and how long messages may wait: the policies, rules of the operator, options of a client."""
