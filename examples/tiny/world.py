"""The little world that the tiny model learns to talk about: animals, places, invented objects, and questions.

Each kind of question is a function of a random source that returns a chat's two turns as (question, right answer).
The wording of an answer follows from its question, so a good model can know every token of it.
"""
import random

SEED = 42
ANIMALS = "otter heron badger hedgehog owl fox beaver mole hare toad goose weasel squirrel robin".split()
THINGS = "shells acorns buttons candles feathers lanterns marbles nuts pebbles ribbons spoons turnips".split()
PLACES = ["mill", "bridge", "tower", "harbour", "market", "orchard", "school", "bakery", "well", "garden", "lighthouse",
          "stable"]  # a map of three rows and four columns
COLUMNS = 4
PACKING = {
    "lighthouse": ["a warm scarf, because the wind is strong", "a lamp, because the stairs are dark",
                   "a flask of tea, because the nights are cold", "a telescope, because ships pass far away",
                   "a rope, because the rocks are steep"],
    "orchard": ["a basket, because the apples are ripe", "a ladder, because the best fruit hangs high",
                "a straw hat, because the sun is hot", "a jar, because the bees give honey",
                "a blanket, because the grass is soft"],
    "harbour": ["a net, because the fish are plenty", "a raincoat, because the waves splash",
                "a whistle, because the fog is thick", "a map, because the boats go far",
                "a bucket, because the crabs are quick"],
    "market": ["a purse, because nothing is free", "a cart, because the melons are heavy",
               "a list, because the stalls are many", "a bell, because the crowd is loud",
               "a bag, because the bread is fresh"],
    "garden": ["a spade, because the soil is hard", "a can of water, because the beans are thirsty",
               "a pair of gloves, because the roses have thorns", "a bag of seeds, because spring is near",
               "a rake, because the leaves have fallen"],
}
RECIPES = {
    "nettle soup": (("cups of water", 2), ("nettles", 5), ("pinches of salt", 1),
                    "boil the water", "add the nettles and stir", "season with the salt and serve it hot"),
    "acorn bread": (("cups of flour", 3), ("acorns", 8), ("spoons of honey", 1),
                    "grind the acorns", "knead them with the flour and the honey", "bake the dough until it is brown"),
    "berry jam": (("cups of berries", 4), ("spoons of sugar", 6), ("lemons", 1),
                  "crush the berries", "cook them slowly with the sugar", "squeeze in the lemons and let it cool"),
    "clover tea": (("cups of water", 1), ("clover heads", 4), ("drops of honey", 2),
                   "dry the clover heads", "pour hot water over them", "wait a while and add the honey"),
    "mushroom pie": (("mushrooms", 7), ("eggs", 2), ("cups of flour", 1),
                     "roll out the flour with the eggs", "lay the mushrooms on top", "bake the pie until it is crisp"),
}
UNITS = [("kilometre", "kilometres", "metres", 1000), ("hour", "hours", "minutes", 60), ("day", "days", "hours", 24),
         ("week", "weeks", "days", 7), ("dozen", "dozens", "pieces", 12), ("barrow", "barrows", "scoops", 20),
         ("tolm", "tolms", "pips", 15), ("crate", "crates", "jars", 30)]
FIRST, SECOND = "moss moon frost bell cloud fern".split(), "drum kettle lamp boat flute wheel".split()
USES = ["to call the boats home", "to keep the soup warm", "to light the path", "to carry grain", "to measure the rain",
        "to wake the village", "to cool the milk", "to find lost nuts", "to scare the crows"]
MATERIALS, COLOURS = "copper clay glass willow stone silver".split(), "green blue yellow white red grey".split()


def objects():
    """Name of each invented object, with facts that stay the same for good."""
    dice = random.Random(SEED)
    return {first + second: {"material": dice.choice(MATERIALS), "colour": dice.choice(COLOURS),
                             "use": dice.choice(USES), "place": dice.choice(PLACES), "weight": dice.randint(2, 60),
                             "owner": dice.choice(ANIMALS)} for first in FIRST for second in SECOND}


OBJECTS = objects()


def counting(dice):
    animal, friend = dice.sample(ANIMALS, 2)
    thing, total = dice.choice(THINGS), dice.randint(8, 60)
    asked, told = [f"The {animal} has {total} {thing}."], [f"At the start the {animal} has {total} {thing}."]
    for _ in range(dice.randint(2, 3)):
        n = dice.randint(2, min(total - 1, 30))
        if dice.random() < 0.5:
            asked.append(f"It finds {n} more.")
            told.append(f"It finds {n} more: {total} + {n} = {total + n}.")
            total += n
        else:
            verb, to = dice.choice([("gives", f" to the {friend}"), ("loses", ""), ("sells", " at the market")])
            asked.append(f"It {verb} {n}{to}.")
            told.append(f"It {verb} {n}{to}: {total} - {n} = {total - n}.")
            total -= n
            if total < 3:
                break
    question = f"How many {thing} does the {animal} have now?"
    answer = "Let us count step by step.\n" + "\n".join(told) + f"\nSo the {animal} now has {total} {thing}."
    n = dice.randint(2, 30)
    more = (f"And if it finds {n} more?", f"Before, the {animal} had {total} {thing}. Now we add {n}: "
            f"{total} + {n} = {total + n}. Then the {animal} would have {total + n} {thing}.")
    return [(" ".join(asked + [question]), answer), more]


def rows(dice):
    animal, thing, n, each = dice.choice(ANIMALS), dice.choice(THINGS), dice.randint(2, 9), dice.randint(2, 9)
    lost, total = dice.randint(1, n * each - 1), n * each
    question = f"The {animal} lays out {n} rows of {each} {thing}. The wind takes {lost} of them. How many are left?"
    answer = (f"There are {n} rows and each row has {each} {thing}. That makes {n} x {each} = {total} {thing}. The wind "
              f"takes {lost} of them: {total} - {lost} = {total - lost}. So {total - lost} {thing} are left.")
    return [(question, answer), (f"Who laid out the {thing}?", f"It was the {animal} who laid out the {thing}.")]


def conversion(dice):
    one, many, small, factor = dice.choice(UNITS)
    n, extra = dice.randint(2, 9), dice.randint(1, factor - 1)
    whole = n * factor
    question = dice.choice([f"How many {small} are {n} {many} and {extra} {small}?",
                            f"Please turn {n} {many} and {extra} {small} into {small}."])
    answer = (f"One {one} is {factor} {small}. So {n} {many} are {n} x {factor} = {whole} {small}. Then we add the "
              f"other {extra} {small}: {whole} + {extra} = {whole + extra}. The answer is {whole + extra} {small}.")
    return [(question, answer), (f"What is one {one}?", f"One {one} is {factor} {small}.")]


def sorting(dice):
    numbers = dice.sample(range(2, 100), dice.randint(4, 6))
    up = sorted(numbers)
    listed, ordered = ", ".join(map(str, numbers)), ", ".join(map(str, up))
    question = dice.choice([f"Sort these numbers: {listed}.", f"Put {listed} in order, please."])
    answer = (f"From the smallest to the largest the numbers are {ordered}. The smallest is {up[0]} and the largest is "
              f"{up[-1]}. There are {len(up)} numbers.")
    down = ", ".join(map(str, reversed(up)))
    return [(question, answer), ("And the other way round?", f"From the largest to the smallest they are {down}.")]


def clock(dice):
    start, end = dice.sample(PLACES, 2)
    hour, minute, needs = dice.randint(6, 20), dice.randrange(5, 60, 5), dice.randrange(10, 60, 5)
    vehicle = dice.choice(["ferry", "coach", "balloon"])
    question = (f"The {vehicle} leaves the {start} at {hour}:{minute:02} and needs {needs} minutes to the {end}. "
                "When does it arrive?")
    total = minute + needs
    answer = f"The {vehicle} leaves at {hour}:{minute:02} and needs {needs} minutes. {minute} + {needs} = {total}. "
    if total >= 60:
        answer += f"That is an hour and {total - 60} minutes past {hour}:00. "
        hour, total = hour + 1, total - 60
    else:
        answer += "That is less than an hour. "
    return [(question, answer + f"So it arrives at the {end} at {hour}:{total:02}."),
            ("Where did it start?", f"It started at the {start} and went to the {end}.")]


def route(dice):
    start, end = dice.sample(range(len(PLACES)), 2)
    here, told = start, [f"You start at the {PLACES[start]}."]
    while here != end:
        row, column = divmod(here, COLUMNS)
        end_row, end_column = divmod(end, COLUMNS)
        if column != end_column:
            way, step = ("east", 1) if end_column > column else ("west", -1)
        else:
            way, step = ("south", COLUMNS) if end_row > row else ("north", -COLUMNS)
        here += step
        told.append(f"Go {way} to the {PLACES[here]}.")
    animal = dice.choice(ANIMALS)
    question = dice.choice([f"How does the {animal} walk from the {PLACES[start]} to the {PLACES[end]}?",
                            f"The {animal} is at the {PLACES[start]}. Which way is the {PLACES[end]}?"])
    told[0] = f"The {animal} starts at the {PLACES[start]}."
    count = "1 step" if len(told) == 2 else f"{len(told) - 1} steps"
    answer = " ".join(told) + f" The {animal} is at the {PLACES[end]} after {count}."
    return [(question, answer), ("Is it far?", f"From the {PLACES[start]} to the {PLACES[end]} it is {count}.")]


def packing(dice):
    animal, place, n = dice.choice(ANIMALS), dice.choice(list(PACKING)), dice.randint(2, 4)
    word, start = ["two", "three", "four"][n - 2], (len(animal) + ord(animal[0])) % 5
    items = [PACKING[place][(start + i) % 5] for i in range(n)]
    question = dice.choice([f"Name {word} things that the {animal} should take to the {place}.",
                            f"The {animal} goes to the {place}. Which {word} things does it pack?"])
    answer = (f"For the {place} the {animal} packs {word} things:\n"
              + "\n".join(f"{i + 1}. {item}" for i, item in enumerate(items))
              + f"\nNow the {animal} is ready for the {place}.")
    return [(question, answer), ("Why the first one?", f"The {animal} takes {items[0]}.")]


def recipe(dice):
    name, guests = dice.choice(list(RECIPES)), dice.randint(2, 9)
    *parts, one, two, three = RECIPES[name]
    needs = [f"{guests} x {amount} = {guests * amount} {what}" for what, amount in parts]
    animal = dice.choice(ANIMALS)
    question = dice.choice([f"How does the {animal} make {name} for {guests} guests?",
                            f"The {animal} wants to cook {name} for {guests}. What does it need and do?"])
    answer = (f"For {guests} guests the {animal} needs {needs[0]}, {needs[1]} and {needs[2]}. First it must {one}. Then "
              f"it must {two}. At last it must {three}.")
    return [(question, answer), ("What comes first?", f"To make {name}, the {animal} must first {one}.")]


def explanation(dice):
    name = dice.choice(list(OBJECTS))
    fact, animal = OBJECTS[name], dice.choice(ANIMALS)
    question = dice.choice([f"What is a {name}?", f"Tell the {animal} about the {name}.",
                            f"The {animal} has never seen a {name}. What is it?"])
    answer = (f"A {name} is a {fact['colour']} thing made of {fact['material']}. It is used {fact['use']}. It weighs "
              f"{fact['weight']} pounds and stands near the {fact['place']}. The {fact['owner']} looks after it.")
    if animal in question:
        answer += f" The {animal} may ask the {fact['owner']} for more."
    return [(question, answer), ("Who looks after it?", f"The {fact['owner']} looks after the {name}.")]


def comparison(dice):
    one, two = dice.sample(list(OBJECTS), 2)
    a, b = OBJECTS[one]["weight"], OBJECTS[two]["weight"]
    heavy, light = (one, two) if a > b else (two, one)
    question = dice.choice([f"Which is heavier, a {one} or a {two}?", f"Compare the {one} with the {two}."])
    verdict = "They weigh the same." if a == b else (
        f"{max(a, b)} - {min(a, b)} = {abs(a - b)}, so the {heavy} is {abs(a - b)} pounds heavier than the {light}.")
    return [(question, f"The {one} weighs {a} pounds and the {two} weighs {b} pounds. {verdict}"),
            (f"And which is made of {OBJECTS[one]['material']}?", f"The {one} is made of {OBJECTS[one]['material']}.")]


KINDS = [counting, rows, conversion, sorting, clock, route, packing, recipe, explanation, comparison]


def chats(dice, n, taken, distinct=False):
    """`n` chats, all kinds alike, each a list of (question, right answer); every third has a second turn.

    No first question is in `taken`. With `distinct` what is asked is added to `taken`, so that none comes twice.
    """
    drawn = []
    while len(drawn) < n:
        turns = KINDS[len(drawn) % len(KINDS)](dice)
        if turns[0][0] in taken:
            continue
        if distinct:
            taken.add(turns[0][0])
        drawn.append(turns if dice.random() < 1 / 3 else turns[:1])
    return drawn
