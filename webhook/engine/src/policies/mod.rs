//! Loads policy files, refuses what does not validate strictly, finds the policies of a question by an index and decides.
