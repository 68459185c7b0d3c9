"""What a package looks like that adds to FedLoom: a module for each thing it adds."""
