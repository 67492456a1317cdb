"""How containers come to their end when we do not end them: deleted pods, and programs that found no memory."""
