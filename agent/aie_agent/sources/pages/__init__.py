"""The metrics pages of other engines: how each says what aie says, and what is wrong with what it says.

`rows` is what a row of the map is, `engines` is the map, `mapping` applies it, `lint` judges a page, `reader` does all of it in
turn for one endpoint.
"""
