"""State of a campaign, and pure rules by which it changes.

``events`` are what happens and what is asked for; ``state`` is the campaign, and how it changes; ``scheduler`` decides. Of its
rules, ``filling`` says who is next and, by ``sizing``, on how many slots, ``health`` on which nodes,
``trouble`` whether the machine itself is to blame. Nothing else of ``hydragnn.hpo`` is imported here.
"""
