"""How far FedLoom's rounds are from the floor: `make bench`, `make bench-gpu`."""
