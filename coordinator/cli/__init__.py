"""`allstop`: what people and programs type. One file per verb; `main.VERBS` lists them."""
