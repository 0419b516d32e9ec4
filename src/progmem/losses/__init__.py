"""Three contrastive objectives, one per scale: ICL (sequence), PCL (memory), HGCL (tokens)."""
