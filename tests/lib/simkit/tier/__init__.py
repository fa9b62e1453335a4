"""Tables, stores and tiering for tests."""
