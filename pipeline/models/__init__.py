"""The models: a file a model, or a folder where one needs several; `registry` finds them."""
