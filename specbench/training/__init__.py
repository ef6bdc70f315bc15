"""What methods learn before a run: heads and arbitrators, CSD's memory, REST's datastore, the bundled pocket models."""
