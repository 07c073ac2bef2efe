"""How the suite trains any model: the recipe, the data, the set-up of DeepSpeed, and CUDA graphs."""
