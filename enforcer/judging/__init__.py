"""Who is over quota, for how long, what will happen when, and what cannot be seen."""
