"""The guided tour: ``python -m headwater.demo`` runs every layer on real records and checks it."""
