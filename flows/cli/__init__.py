"""What the command lines share: options, words, tables, progress, logs."""
