"""Other systems' configurations as recipes: who reads which, what becomes of each key, and the text that is written."""
