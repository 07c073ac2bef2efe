"""How the suite trains, whatever the model: the recipe, the data, the set-up of engines, CUDA graphs."""
