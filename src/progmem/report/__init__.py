"""Pictures and a page that holds them."""
